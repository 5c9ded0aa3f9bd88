"""A model on a page and behind an API: `memformer explore`."""
