"""The module `knowledge`: what each user wants to be remembered, found again by its words."""
