"""The kinds of vocabularies, each behind the interface `base.Vocabulary`."""
