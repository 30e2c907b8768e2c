"""A project in Flower, as the tests run it."""
