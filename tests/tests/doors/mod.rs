//! The API's doors as strangers meet them: web pages, local users, floods of connections.

mod flood;
mod local;
mod pages;
mod privileges;
mod raw;
