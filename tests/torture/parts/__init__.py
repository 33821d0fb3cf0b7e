"""The parts of the campaign: each module makes the cases of one part (`cases(context)`)."""
