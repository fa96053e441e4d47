//! A server's JSON answers with the order of their members, so that they are shown in that order. Pure: no I/O.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::Number;

/// A JSON value.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Data {
    /// `null`, or an answer without a body.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Data>),
    /// An object.
    Map(Vec<(String, Data)>),
}

impl Data {
    /// The member of that name; null if it is absent.
    pub fn get(&self, name: &str) -> &Data {
        let Data::Map(members) = self else { return &Data::Null };
        let found = members.iter().find(|(key, _)| key == name);
        found.map_or(&Data::Null, |(_, value)| value)
    }

    /// The text of the member of that name, if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number of the member of that name, if it is a whole one.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Data::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    /// The items of a member that is a list; of any other, none.
    pub fn items(&self, name: &str) -> &[Data] {
        match self.get(name) {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The items of a list; empty for anything else.
    pub fn into_items(self) -> Vec<Data> {
        match self {
            Data::List(items) => items,
            _ => Vec::new(),
        }
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Data::Null => serializer.serialize_unit(),
            Data::Bool(value) => serializer.serialize_bool(*value),
            Data::Number(number) => number.serialize(serializer),
            Data::Text(text) => serializer.serialize_str(text),
            Data::List(items) => items.serialize(serializer),
            Data::Map(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (key, value) in members {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Data, E> {
        Ok(Data::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Data, E> {
        Ok(Data::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Data, E> {
        Ok(Data::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Data, E> {
        Ok(Number::from_f64(value).map_or(Data::Null, Data::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Data, E> {
        Ok(Data::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Data, E> {
        Ok(Data::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Data, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Data::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Data, A::Error> {
        let mut map = Vec::new();
        while let Some(member) = members.next_entry()? {
            map.push(member);
        }
        Ok(Data::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives() {
        let text = r#"{"z":1,"a":[null,true,-2,1.5,"x"],"m":{"b":{},"a":[]}}"#;
        let data: Data = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&data).unwrap(), text);
        assert_eq!(data.get("m").get("b"), &Data::Map(Vec::new()));
        assert_eq!(data.get("nothing").text("at all"), None);
    }
}
