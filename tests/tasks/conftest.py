"""Shared by the tests of tasks."""

import uuid

import pytest


@pytest.fixture
def mark(monkeypatch):
    """A word in the environment of every process that a test starts."""
    word = f"sandbox-test-{uuid.uuid4()}"
    monkeypatch.setenv("SANDBOX_TEST", word)
    return word
