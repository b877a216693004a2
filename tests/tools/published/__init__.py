"""The four published documents as executable examples: what they print, and what Partage does.

`cases` hold what is printed and what is expected; `program` runs the real command on the input;
`page` writes the outcome as one document. What belongs to a later release is listed, not faked.
"""
