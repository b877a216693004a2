"""Controllers: what the API's objects should say, compared with what they say, written on change."""
