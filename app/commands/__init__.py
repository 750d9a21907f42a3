"""The commands of ``draftport``, each in a module of its own, so that one does not pay for the imports of another."""
