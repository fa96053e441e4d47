//! Recipes in their table.

use crate::{
    records::{Link, LinuxDistribution, Moment, Recipe, RecipeType},
    store::{
        Result,
        table::{Columns, Table, TwoSided, Value},
    },
};

impl Table for Recipe {
    const NAME: &'static str = "recipes";
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "created",
        "name",
        "arch",
        "link_path",
        "link_etag",
        "recipe_type",
        "linux_distribution",
        "require_dkms",
        "template_dictionary",
        "deleted",
    ];

    fn values(&self) -> Vec<Value> {
        let [link_path, link_etag] = Value::link(self.link.as_ref());
        vec![
            Value::id(self.id),
            Value::moment(self.created),
            Value::text(&self.name),
            Value::text(self.arch.name()),
            link_path,
            link_etag,
            Value::text(self.recipe_type.name()),
            Value::text(self.linux_distribution.name()),
            Value::Flag(self.require_dkms),
            self.template_dictionary.as_ref().map_or(Value::Text(None), Value::json),
            Value::Number(self.deleted.map(Moment::micros)),
        ]
    }

    fn read<'r>(row: &mut impl Columns<'r>) -> Result<Self> {
        Ok(Self {
            id: row.parsed()?,
            created: row.moment()?,
            name: row.string()?,
            arch: row.parsed()?,
            link: row.link()?,
            recipe_type: row.named(&RecipeType::ALL, RecipeType::name)?,
            linux_distribution: row.named(&LinuxDistribution::ALL, LinuxDistribution::name)?,
            require_dkms: row.flag()?,
            template_dictionary: row.maybe_json()?,
            deleted: row.maybe_number()?.map(Moment::from_micros),
        })
    }
}

impl TwoSided for Recipe {
    fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    fn deleted(&self) -> Option<Moment> {
        self.deleted
    }
}
