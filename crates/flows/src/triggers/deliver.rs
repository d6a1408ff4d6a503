//! A delivery to a hook: verified, mapped, and its run started.

use cofferdam_ambient::clock::now_ms;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::HookAddress;
use cofferdam_contracts::schema::{parse_json, unstorable};
use cofferdam_contracts::trigger::{HookReceipt, HookSpec};
use cofferdam_ledger::firings::{Delivery, FireOutcome, FiringCause};
use cofferdam_ledger::triggers::{Trigger, TriggerSpec};

use super::signature::{self, DeliveryHeaders, SignatureFault};
use super::{Triggers, violation};
use crate::error::{Error, Result};

/// What a stranger hears, whichever hook there is: neither its name nor its scheme shows.
const NOT_VERIFIED: &str =
    "no hook has this address, or its signature does not hold; the server's log says which";

impl Triggers {
    /// Starts the run of a delivery, once: one that came before has its run already. What its signature does not hold of is counted,
    /// and nothing else of it is kept; what is refused later leaves nothing, and may be sent again.
    pub async fn deliver(
        &self,
        address: &HookAddress,
        headers: &DeliveryHeaders,
        body: &[u8],
    ) -> Result<HookReceipt> {
        // Without a statement: a stranger who signs nothing costs no more.
        if !signature::is_in_form(headers) {
            return Err(self.unverified("it has no signature in any scheme's form").into());
        }
        let Some(trigger) = self.ledger.triggers().by_address(address).await? else {
            return Err(self.unverified("no hook has its address").into());
        };
        let TriggerSpec::Hook(hook) = &trigger.spec else {
            return Err(Error::corrupt("hook")("it is a schedule"));
        };
        let event = self.verified(&trigger, hook, headers, body).await?;
        let sent = parse_json(body)?;
        if let Some(why) = unstorable(&sent) {
            return Err(violation("", why).into());
        }
        let told = signature::event(hook.scheme, headers, &sent);
        let digest = digest_bytes(body);
        let delivery = Delivery { trigger: &trigger.id, event: &event, digest: &digest };
        let is_wanted = hook.events.is_empty()
            || told.is_some_and(|told| hook.events.iter().any(|one| one == told));
        let outcome = match is_wanted {
            true => {
                let cause = FiringCause::Delivery(delivery);
                Some(self.start(&trigger, hook.mapped(&sent), cause).await?)
            }
            false if signature::leaves_event_out(hook.scheme) => {
                self.ledger.triggers().filter(&delivery).await?
            }
            false => None,
        };
        receipt(outcome)
    }

    /// The id of a delivery that is its sender's.
    async fn verified(
        &self,
        trigger: &Trigger,
        hook: &HookSpec,
        headers: &DeliveryHeaders,
        body: &[u8],
    ) -> Result<String> {
        let fault = match self.secrets.of_hook(&trigger.tenant, &hook.secret).await {
            Ok(secret) => {
                let value = secret.value.expose();
                let now_s = now_ms().div_euclid(1_000);
                match signature::verify(hook.scheme, value, headers, body, now_s) {
                    Ok(event) => return Ok(event),
                    Err(fault) => fault,
                }
            }
            Err(Error::Ledger(error)) => return Err(error.into()),
            // A stranger learns no name of a secret, nor whether there is one.
            Err(error) => {
                tracing::warn!(hook = %trigger.name, tenant = %trigger.tenant, %error, "a hook's secret does not open");
                SignatureFault::Signature
            }
        };
        let mut refusal = self.unverified(&fault.to_string());
        // Beyond the bound not even counted: who cannot sign costs no statement more.
        if refusal.code == ErrorCode::SignatureInvalid {
            tracing::warn!(hook = %trigger.name, tenant = %trigger.tenant, %fault, "a delivery is refused");
            self.ledger.triggers().unsigned(&trigger.id).await?;
            // Said to those alone who can sign.
            if let SignatureFault::Time = fault {
                refusal.message = fault.to_string();
            }
        }
        Err(refusal.into())
    }

    /// The refusal of a delivery that is not verified, alike for each reason.
    fn unverified(&self, why: &str) -> Refusal {
        if !self.guesses.another(now_ms()) {
            let why = "too many deliveries without a valid signature; retry in a minute";
            return Refusal::new(ErrorCode::TooManyGuesses, why);
        }
        tracing::debug!(why, "a delivery is not verified");
        Refusal::new(ErrorCode::SignatureInvalid, NOT_VERIFIED)
    }
}

/// The answer to a verified delivery; `outcome`: `None` where its event starts nothing. Pure.
fn receipt(outcome: Option<FireOutcome>) -> Result<HookReceipt> {
    let (run_id, is_replay) = match outcome {
        None => (None, false),
        Some(FireOutcome::Started(header)) => (Some(header.run_id), false),
        Some(FireOutcome::Replayed(run)) => (Some(run), true),
        Some(FireOutcome::Filtered) => (None, true),
        Some(FireOutcome::Differs) => {
            let why = "a delivery with this id and another body came before";
            return Err(Refusal::new(ErrorCode::Conflict, why).into());
        }
        Some(FireOutcome::Settled) => return Err(Refusal::not_found("hook").into()),
        Some(FireOutcome::Overlaps) => {
            return Err(Error::corrupt("delivery")("it overlaps another one"));
        }
    };
    Ok(HookReceipt { run_id, is_replay })
}
