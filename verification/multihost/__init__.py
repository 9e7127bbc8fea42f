"""Parts of verification/run_physical_multihost.py: the far end of an ssh connection, nodes, cases, results."""
