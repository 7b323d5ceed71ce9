//! Conversations played to the bridges.
