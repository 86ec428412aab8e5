"""`python -m assay.cli` equals `assay`."""

from assay.cli import main

if __name__ == "__main__":
    main()
