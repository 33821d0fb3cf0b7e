"""Classification and regression of texts: GLUE and custom tasks."""
