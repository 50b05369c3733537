"""One module for each library, each with ``ADAPTER``; libraries are imported by the module's import."""
