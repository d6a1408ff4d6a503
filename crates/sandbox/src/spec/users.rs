//! Whom the commands of a request run as. Pure: names were looked up before.

use std::collections::BTreeMap;

use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_contracts::user::{MAX_ID, UserName};
use cofferdam_guest::wire::User;

use crate::host::account::Account;
use crate::images::ImageRoot;
use crate::spec::refuse::{PlanError, require};

/// The users that a request names, as its root file system knows them.
pub(crate) type Accounts = BTreeMap<UserName, Account>;

/// The users that a request names, each with its field.
pub(crate) fn named(request: &SandboxRequest) -> Vec<(String, &UserName)> {
    let build = request.build.as_ref().and_then(|build| build.user.as_ref());
    let mut all =
        vec![("user".to_owned(), request.user.as_ref()), ("build.user".to_owned(), build)];
    let services = request.spec.as_ref().and_then(|spec| spec.services.as_deref());
    for (index, service) in services.unwrap_or_default().iter().enumerate() {
        let detail = service.detail.as_ref();
        let own = detail
            .and_then(|detail| detail.image.as_ref())
            .is_some_and(|image| *image != request.env_ref);
        // Those of an image of its own are in that image.
        let user = detail.filter(|_| !own).and_then(|detail| detail.user.as_ref());
        all.push((format!("spec.services[{index}].user"), user));
    }
    all.into_iter().filter_map(|(field, user)| Some((field, user?))).collect()
}

/// The users of one plan.
pub(crate) struct PlanUsers<'a> {
    pub accounts: &'a Accounts,
    /// Whether this host can read the sandbox's root file system, so that names mean something.
    pub reads_root: bool,
}

/// Who runs a command, as its agent is told.
pub(crate) struct CommandUser<'a> {
    /// The home directory; absent where no user is named.
    pub home: Option<&'a str>,
    pub user: Option<User>,
    pub groups: Vec<u32>,
}

/// Who runs the commands of a request.
pub(crate) struct CommandUsers<'a> {
    pub build: CommandUser<'a>,
    pub task: CommandUser<'a>,
}

impl<'a> PlanUsers<'a> {
    /// Those of the build and of the task: as the request names them, the task's for both, or the image's.
    pub(crate) fn of_commands(
        &self,
        request: &SandboxRequest,
        image: Option<&'a ImageRoot>,
    ) -> Result<CommandUsers<'a>, PlanError> {
        let of_image = image.and_then(|image| image.user.as_ref());
        of_image.map_or(Ok(()), |account| fits("envRef", account))?;
        let task = request.user.as_ref().map(|name| self.of("user", name)).transpose()?;
        let task = task.or(of_image);
        let build = request.build.as_ref().and_then(|build| build.user.as_ref());
        let build = build.map(|name| self.of("build.user", name)).transpose()?.or(task);
        Ok(CommandUsers { build: CommandUser::of(build), task: CommandUser::of(task) })
    }

    /// The account of the user that a field names.
    pub(crate) fn of(&self, field: &str, name: &UserName) -> Result<&'a Account, PlanError> {
        require(
            name.is_numeric() || self.reads_root,
            field,
            "must be numbers in the class `remote`, such as `1000:1000`: its root file system is the provider's",
        )?;
        let missing = || PlanError::new(field, "was not looked up in the root file system");
        let account = self.accounts.get(name).ok_or_else(missing)?;
        fits(field, account)?;
        Ok(account)
    }
}

impl<'a> CommandUser<'a> {
    fn of(account: Option<&'a Account>) -> Self {
        let (user, groups) = told(account);
        Self { home: account.map(|account| account.home.as_str()), user, groups }
    }
}

/// Whether a sandbox has all ids of an account.
pub(crate) fn fits(field: &str, account: &Account) -> Result<(), PlanError> {
    let User { uid, gid } = account.user;
    let highest = account.groups.iter().copied().chain([uid, gid]).max().unwrap_or(0);
    let message =
        format!("has the id {highest}; a sandbox has ids of 0 to {MAX_ID}: name another user");
    require(highest <= MAX_ID, field, &message)
}

/// What an agent is told of an account. Root is what a command is without a user.
pub(crate) fn told(account: Option<&Account>) -> (Option<User>, Vec<u32>) {
    match account.filter(|account| account.user != User { uid: 0, gid: 0 }) {
        Some(account) => (Some(account.user), account.groups.clone()),
        None => (None, Vec::new()),
    }
}
