//! Checks what is wanted of a set's architectures, and puts it into the set. It reads rows of the store and asks S3 for
//! recipes; it writes nothing.

use std::collections::BTreeSet;

use kiln_records::{
    Image, ImageId, ImageSet, JobId, JobType, Moment, RecipeId,
    arch::Arch,
    set::{Member, SetImage},
};

use super::{SetRefusal, Source, Wanted};
use crate::{
    orchestrate::ask::{Asker, NewJob, Referred, Refusal},
    store::{Collection, Side},
};

/// Puts what is wanted into a set: an image, or another attempt with the id of its job.
pub(super) async fn put(asker: &Asker, set: &mut ImageSet, wanted: &[Wanted], now: Moment) -> Result<(), SetRefusal> {
    let mut seen = BTreeSet::new();
    for one in wanted {
        if !seen.insert(one.arch) {
            return Err(SetRefusal::Twice(one.arch));
        }
    }
    for one in wanted {
        match one.from {
            Source::Recipe(recipe) => check_recipe(asker, set, recipe, one.arch).await?,
            Source::Image(image) => check_image(asker, image, one.arch).await?,
            Source::Archive => {}
        }
        let at = set.members.iter().position(|member| member.arch == one.arch);
        let at = at.unwrap_or_else(|| {
            let at = set.members.partition_point(|member| member.arch < one.arch);
            set.members.insert(at, empty(one.arch));
            at
        });
        let Some(member) = set.members.get_mut(at) else {
            continue;
        };
        member.required = one.required;
        member.time_limit_s = one.time_limit_s;
        match one.from {
            Source::Recipe(recipe) => {
                member.recipe_id = Some(recipe);
                member.ask(now);
            }
            Source::Image(image) => member.image = Some(SetImage::new(image)),
            Source::Archive => member.ask(now),
        }
    }
    Ok(())
}

/// Checks that a job of the recipe would be made, and would be one for this architecture.
async fn check_recipe(asker: &Asker, set: &ImageSet, recipe: RecipeId, arch: Arch) -> Result<(), SetRefusal> {
    let planned = asker.plan(JobId::new(), &new_job(set, arch, recipe)).await;
    let (job, _) = planned.map_err(|refusal| SetRefusal::Job(arch, refusal))?;
    is_for(arch, job.arch, Referred::Recipe, recipe.into())
}

async fn check_image(asker: &Asker, id: ImageId, arch: Arch) -> Result<(), SetRefusal> {
    let found = Collection::<Image>::get(&*asker.store, Side::Live, id).await?;
    let refused = |refusal| SetRefusal::Job(arch, refusal);
    let image = found.ok_or_else(|| refused(Refusal::Unknown(Referred::Image, id.into())))?;
    if image.record.link.is_none() {
        return Err(refused(Refusal::NoLink(Referred::Image)));
    }
    is_for(arch, image.record.arch, Referred::Image, id.into())
}

/// The request for the job of an architecture.
pub(super) fn new_job(set: &ImageSet, arch: Arch, recipe: RecipeId) -> NewJob {
    NewJob {
        job_type: JobType::Create,
        artifact_id: recipe.into(),
        public_key_id: set.public_key_id,
        image_root_archive_name: set.image_name(arch),
        enable_debug: false,
        shells: Vec::new(),
        changes: Vec::new(),
        options: set.options.clone(),
    }
}

fn is_for(asked: Arch, is: Arch, referred: Referred, id: uuid::Uuid) -> Result<(), SetRefusal> {
    if is == asked {
        return Ok(());
    }
    Err(SetRefusal::OtherArch {
        referred,
        id,
        is,
        asked,
    })
}

fn empty(arch: Arch) -> Member {
    Member {
        arch,
        required: true,
        recipe_id: None,
        time_limit_s: None,
        attempts: Vec::new(),
        image: None,
    }
}
