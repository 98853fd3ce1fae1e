//! The transport between the ranks.

use dtrain_common::env::{DTRAIN_TRANSPORT, EnvError};

/// The user's choice of transport, in [`DTRAIN_TRANSPORT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory within each node if all ranks can use it, TCP for the rest.
    #[default]
    Auto,
    /// TCP, by Gloo.
    Gloo,
    /// Shared memory within each node, or an error.
    Shared,
    /// An MPI library, or an error.
    Mpi,
}

impl Transport {
    /// All transports with their names.
    pub const ALL: [(&'static str, Self); 4] =
        [("auto", Self::Auto), ("gloo", Self::Gloo), ("shared", Self::Shared), ("mpi", Self::Mpi)];

    /// Reads the variable through `get`. If it is unset or empty, the result is [`Transport::Auto`].
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvError> {
        let value = get(DTRAIN_TRANSPORT).unwrap_or_default();
        let name = match value.trim() {
            "" => "auto",
            name => name,
        };
        match Self::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, transport)) => Ok(*transport),
            None => Err(EnvError::Invalid {
                name: DTRAIN_TRANSPORT,
                value,
                expected: "auto, gloo, shared or mpi",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(value: Option<&str>) -> Result<Transport, EnvError> {
        Transport::from_lookup(|name| {
            assert_eq!(name, "DTRAIN_TRANSPORT");
            value.map(String::from)
        })
    }

    #[test]
    fn all_transports_and_an_unset_variable_are_read() {
        for (value, wanted) in [
            (None, Transport::Auto),
            (Some(""), Transport::Auto),
            (Some("auto"), Transport::Auto),
            (Some("gloo "), Transport::Gloo),
            (Some("shared"), Transport::Shared),
            (Some("mpi"), Transport::Mpi),
        ] {
            assert_eq!(read(value).unwrap(), wanted, "{value:?}");
        }
    }

    #[test]
    fn an_unknown_transport_is_an_error_that_names_the_choices() {
        for value in ["tcp", "Shared", "gloo,shared"] {
            let message = read(Some(value)).unwrap_err().to_string();
            for part in ["DTRAIN_TRANSPORT", value, "auto, gloo, shared or mpi"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }
}
