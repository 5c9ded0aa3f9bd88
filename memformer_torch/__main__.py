"""`python -m memformer_torch`, for launchers that want a module."""

from memformer_torch.cli import main

if __name__ == "__main__":
    main()
