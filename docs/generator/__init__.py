"""Makes the parts of the documentation that follow from the code: run `docs/generate`.

Two kinds of output. Whole files (pictures, the AsyncAPI document), and blocks inside a page that stand between
two comments, so that prose is written by hand and tables are not. A test compares what is committed with what the
code says now.
"""
