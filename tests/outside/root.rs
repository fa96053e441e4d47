//! What a recipe brings into the new root, and what is looked at in the finished one.
