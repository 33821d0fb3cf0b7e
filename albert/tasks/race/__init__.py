"""Multiple-choice reading comprehension: RACE."""
