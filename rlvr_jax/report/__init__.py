"""`rlvr-jax report`: runs as one page that is looked at."""
