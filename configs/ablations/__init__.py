"""One row of a table or a line of a figure of the two papers each: a recipe with one to four keys changed."""
