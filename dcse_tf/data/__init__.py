"""From files of dialogues to batches."""
