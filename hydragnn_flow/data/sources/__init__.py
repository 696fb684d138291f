"""Sources of graphs: one module per format, all yielding the records of :class:`Source`.

``structures`` is the base of all formats of files. A format's file holds its section of the
configuration, which ``config.sources.FORMATS`` names, and its reader. Torch, ASE and the like are
imported inside functions, because sections are imported to check a configuration. ``arrays``,
``labels``, ``file_names`` and ``single`` are helpers.
"""
