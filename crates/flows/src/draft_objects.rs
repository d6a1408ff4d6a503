//! Objects that a task wrote, until its end is on record.

use std::collections::BTreeMap;

use cofferdam_ledger::artifacts::{NewArtifact, NewContent};
use cofferdam_ledger::objects::NewObject;
use cofferdam_store::ObjectDraft;

/// An object that was written, until the end of its task is on record.
#[derive(Debug)]
pub struct DraftObject {
    pub(crate) draft: ObjectDraft,
    pub(crate) row: NewObject,
    /// Artifacts have it; otherwise they have an equal one that was stored before, while that is there.
    pub(crate) is_used: bool,
}

/// Takes the objects that were written in the place of those that were stored before, one of which was erased before the artifacts
/// were on record; whether there is one to take. Pure.
pub(crate) fn take_written(artifacts: &mut [NewArtifact], staged: &mut [DraftObject]) -> bool {
    let unused = staged.iter_mut().filter(|object| !object.is_used);
    let written: BTreeMap<String, NewObject> = unused
        .map(|object| {
            object.is_used = true;
            (object.row.sha256.clone().into(), object.row.clone())
        })
        .collect();
    for artifact in artifacts {
        if let NewContent::Object(object) = &mut artifact.content
            && let Some(own) = written.get(object.sha256.as_str())
        {
            *object = own.clone();
        }
    }
    !written.is_empty()
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::artifact::{ArtifactKind, ArtifactMode};
    use cofferdam_contracts::canonical::digest_bytes;
    use cofferdam_contracts::id::{ObjectId, TenantId};
    use cofferdam_store::{ObjectWriter, Store};

    use super::*;

    fn row(id: &ObjectId, text: &str) -> NewObject {
        NewObject {
            id: id.clone(),
            store: "f".repeat(32),
            sha256: digest_bytes(text.as_bytes()),
            size: 9,
            sealed_key: vec![0; 60],
            sealed_by: digest_bytes(b"key"),
        }
    }

    #[tokio::test]
    async fn what_was_written_stands_for_an_equal_object_that_went() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let acme = TenantId::parse("acme").unwrap();
        let mut staged = Vec::new();
        for (text, is_used) in [("known", false), ("new", true)] {
            let mut writer = ObjectWriter::begin(&store, &acme).await.unwrap();
            writer.write(text.as_bytes()).await.unwrap();
            let draft = writer.finish().await.unwrap();
            let row = row(draft.id(), text);
            staged.push(DraftObject { draft, row, is_used });
        }
        let old = ObjectId::parse(&"9".repeat(32)).unwrap();
        let own: Vec<ObjectId> = staged.iter().map(|object| object.row.id.clone()).collect();
        let artifact = |content| {
            let (kind, name) = (ArtifactKind::File, "files/x".to_owned());
            NewArtifact { kind, name, content, mode: ArtifactMode::File, target: None }
        };
        let object = |id: &ObjectId, text| artifact(NewContent::Object(row(id, text)));
        let bytes = artifact(NewContent::Bytes(b"known".to_vec()));
        let mut artifacts =
            vec![object(&old, "known"), bytes, object(&own[1], "new"), object(&old, "known")];
        assert!(take_written(&mut artifacts, &mut staged));
        let ids = artifacts.iter().map(|artifact| match &artifact.content {
            NewContent::Object(object) => Some(object.id.clone()),
            NewContent::Bytes(_) => None,
        });
        let wanted = [Some(own[0].clone()), None, Some(own[1].clone()), Some(own[0].clone())];
        assert_eq!(ids.collect::<Vec<_>>(), wanted);
        assert!(staged.iter().all(|object| object.is_used));
        assert!(!take_written(&mut artifacts, &mut staged), "once");
    }
}
