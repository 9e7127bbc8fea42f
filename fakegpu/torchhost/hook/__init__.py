"""Not imported as a package: this directory goes on PYTHONPATH, for its sitecustomize."""
