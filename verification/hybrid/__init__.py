"""Parts of the run_hybrid_*_numerics.py scripts: worked-out numbers, the model that has them, workers, the job."""
