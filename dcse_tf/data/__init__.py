"""Reads files of dialogues and turns them into batches."""
