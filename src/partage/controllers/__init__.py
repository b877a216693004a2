"""Controllers: compare the intended state of the API's objects with the actual one, and write differences."""
