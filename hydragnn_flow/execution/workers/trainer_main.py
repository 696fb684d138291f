"""Main module of a trainer process: it imports what answers need, then `answers` serves."""

from hydragnn_flow.garbage import no_collection

if __name__ == "__main__":
    with no_collection():  # which would take a quarter of the seconds that the imports last
        from hydragnn_flow.execution.workers.answers import serve
    serve()
