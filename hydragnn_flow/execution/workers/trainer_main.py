"""Main module of a trainer process: imports the modules that jobs need, then serves requests."""

from hydragnn_flow.garbage import no_collection
from hydragnn_flow.lean import import_lean

if __name__ == "__main__":
    import_lean(dynamo_too=False)
    with no_collection():  # collecting would take a quarter of the time of the imports
        from hydragnn_flow.execution.workers.answers import serve
    serve()
