"""Main module of a trainer process: imports the modules that jobs need, then serves requests."""

from hydragnn_flow.garbage import no_collection

if __name__ == "__main__":
    with no_collection():  # collecting would take a quarter of the time of the imports
        from hydragnn_flow.execution.workers.answers import serve
    serve()
