//! A delivery to a hook: verified, mapped, and its run started.

use cofferdam_ambient::clock::now_ms;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TriggerName;
use cofferdam_contracts::schema::{parse_json, unstorable};
use cofferdam_contracts::trigger::{HookReceipt, HookSpec, TriggerKind};
use cofferdam_ledger::firings::{Delivery, FireOutcome, FiringCause};
use cofferdam_ledger::triggers::{Trigger, TriggerSpec};

use super::signature::{self, DeliveryHeaders};
use super::{Triggers, violation};
use crate::error::{Error, Result};

impl Triggers {
    /// Starts the run of a delivery, once: one that came before has its run already. What its signature does not hold of is counted,
    /// and nothing else of it is kept; what is refused later leaves nothing, and may be sent again.
    pub async fn deliver(
        &self,
        name: &TriggerName,
        headers: &DeliveryHeaders,
        body: &[u8],
    ) -> Result<HookReceipt> {
        let found = self.ledger.triggers().by_name(None, TriggerKind::Hook, name).await?;
        let trigger = found.ok_or_else(|| Refusal::not_found("hook"))?;
        let TriggerSpec::Hook(hook) = &trigger.spec else {
            return Err(Error::corrupt("hook")("it is a schedule"));
        };
        let event = self.verified(&trigger, hook, headers, body).await?;
        let sent = parse_json(body)?;
        if let Some(why) = unstorable(&sent) {
            return Err(violation("", why).into());
        }
        let told = signature::event(hook.scheme, headers, &sent);
        if !hook.events.is_empty()
            && !told.is_some_and(|told| hook.events.iter().any(|e| e == told))
        {
            return Ok(HookReceipt { run_id: None, is_replay: false });
        }
        let digest = digest_bytes(body);
        let delivery = Delivery { trigger: &trigger.id, event: &event, digest: &digest };
        let started =
            self.start(&trigger, hook.mapped(&sent), FiringCause::Delivery(delivery)).await?;
        match started {
            FireOutcome::Started(header) => {
                Ok(HookReceipt { run_id: Some(header.run_id), is_replay: false })
            }
            FireOutcome::Replayed(run) => Ok(HookReceipt { run_id: Some(run), is_replay: true }),
            FireOutcome::Differs => {
                let why = "a delivery with this id and another body came before";
                Err(Refusal::new(ErrorCode::Conflict, why).into())
            }
            FireOutcome::Settled => Err(Refusal::not_found("hook").into()),
            FireOutcome::Overlaps => Err(Error::corrupt("delivery")("it overlaps another one")),
        }
    }

    /// The id of a delivery that is its sender's.
    async fn verified(
        &self,
        trigger: &Trigger,
        hook: &HookSpec,
        headers: &DeliveryHeaders,
        body: &[u8],
    ) -> Result<String> {
        let now = now_ms();
        let fault = match self.secrets.of_hook(&trigger.tenant, &hook.secret).await {
            Ok(secret) => {
                let value = secret.value.expose();
                let now_s = now.div_euclid(1_000);
                match signature::verify(hook.scheme, value, headers, body, now_s) {
                    Ok(event) => return Ok(event),
                    Err(fault) => fault.to_string(),
                }
            }
            Err(Error::Ledger(error)) => return Err(error.into()),
            // A stranger learns no name of a secret, nor whether there is one.
            Err(error) => {
                tracing::warn!(hook = %trigger.name, tenant = %trigger.tenant, %error, "a hook's secret does not open");
                "the delivery cannot be verified".to_owned()
            }
        };
        // Beyond the bound not even counted: who cannot sign costs no statement more.
        if !self.guesses.another(now) {
            let why = "too many deliveries without a valid signature; retry in a minute";
            return Err(Refusal::new(ErrorCode::TooManyGuesses, why).into());
        }
        tracing::warn!(hook = %trigger.name, tenant = %trigger.tenant, %fault, "a delivery is refused");
        self.ledger.triggers().unsigned(&trigger.id).await?;
        Err(Refusal::new(ErrorCode::SignatureInvalid, fault).into())
    }
}
