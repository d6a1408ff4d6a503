//! Reply links: made by an approver or operator, followed by a person without a key.
//!
//! ```text
//! token -> HMAC (no row is read for a guess) -> recorded, unused, in time -> the gate waits for the
//!   same digest -> the gate service, as `link:<name>` -> its ledger row consumes the link (trigger)
//! ```
//! **Reading a link changes nothing. A link that cannot answer has written nothing.**

use cofferdam_ambient::clock;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::gate::{Origin, ReplyResponse, choice_of};
use cofferdam_contracts::id::{Digest, GateKey, RunId};
use cofferdam_contracts::key::Role;
use cofferdam_contracts::link::{LinkClaim, LinkReply, LinkRequest, LinkResponse, LinkView};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::plan_text::{self, MAX_SHOWN_BYTES};
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::gates::Reply;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::links::LinkGate;
use serde_json::json;

use crate::error::{Error, Result};
use crate::gates::reply::{Gates, link_stands, reply};
use crate::sign;

/// Bytes of a link's answer: a form is filled in by hand.
const MAX_PAYLOAD_BYTES: usize = 16 * 1024;

fn spent(why: &str) -> Error {
    Refusal::new(ErrorCode::LinkSpent, format!("this link no longer answers: {why}")).into()
}

impl Gates {
    /// Makes a link to a gate that waits.
    pub async fn link(
        &self,
        who: &Principal,
        run: &str,
        gate: &GateKey,
        request: &LinkRequest,
        public_url: &str,
    ) -> Result<LinkResponse> {
        let signer = sign::here(self.signer.as_deref())?;
        let linked = self.ledger.links().gate(&who.tenant, run, gate).await?;
        if !linked.is_waiting {
            let why = "the gate does not wait for an answer";
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        link_stands(&self.ledger, who, &linked.run, gate).await?;
        let expires_at = clock::now_ms()
            .saturating_add(i64::from(request.expires_s) * 1_000)
            .min(linked.deadline_at);
        let claim = LinkClaim {
            v: 1,
            id: secret_hex(16),
            tenant: who.tenant.clone(),
            run: linked.run,
            gate: gate.clone(),
            topic: linked.topic,
            digest: linked.digest,
            choice: request.choice,
            name: request.name.clone(),
            expires_at,
        };
        let token =
            signer.link(&claim).ok_or_else(|| Error::corrupt("link")("it has no JSON form"))?;
        let audit = Audit {
            detail: Some(json!({
                "linkId": claim.id, "gate": claim.gate, "for": claim.name, "choice": claim.choice,
                "digest": claim.digest, "expiresAt": expires_at,
            })),
            ..Audit::by(who, "gate.link", claim.run.as_str())
        };
        self.ledger.links().create(&claim, linked.plan_digest.as_ref(), &audit).await?;
        let path = format!("/api/links/{token}");
        Ok(LinkResponse {
            link_id: claim.id,
            url: format!("{public_url}{path}"),
            path,
            name: claim.name,
            expires_at,
        })
    }

    /// What a link would answer.
    pub async fn link_view(&self, token: &str) -> Result<LinkView> {
        let (claim, gate) = self.opened(token).await?;
        let (plan, plan_left_out) = match &gate.plan_digest {
            Some(digest) => self.shown_plan(&claim.run, digest).await?,
            None => (Vec::new(), 0),
        };
        Ok(LinkView {
            plan,
            plan_left_out,
            asks: gate.asks,
            budget: gate.budget,
            start: gate.start,
            run_id: claim.run,
            gate_key: claim.gate,
            name: claim.name,
            digest: claim.digest,
            choice: claim.choice,
            expires_at: claim.expires_at,
            form_schema: gate.form,
        })
    }

    /// The plan with this digest, line by line, as far as a page holds it.
    async fn shown_plan(&self, run: &RunId, digest: &Digest) -> Result<(Vec<String>, usize)> {
        let broken = |why: String| Error::Corrupt { what: "artifacts.plan_card", why };
        let text = self.ledger.steps().plan(run, digest).await?;
        let text = text.ok_or_else(|| broken(format!("{run} has no plan {digest}")))?;
        if digest_bytes(text.as_bytes()) != *digest {
            return Err(broken(format!("the plan of {run} is not the one with its digest")));
        }
        let plan: Plan = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
        Ok(plan_text::fitting(plan_text::lines(&plan), MAX_SHOWN_BYTES))
    }

    /// Answers through a link, once, with the gate service's own checks.
    pub async fn link_reply(&self, token: &str, said: &LinkReply) -> Result<ReplyResponse> {
        let (claim, _) = self.opened(token).await?;
        let violation = |message: &str| {
            Refusal::violations(&[Violation {
                instance_path: "/payload".into(),
                message: message.into(),
            }])
        };
        if said.payload.to_string().len() > MAX_PAYLOAD_BYTES {
            return Err(violation("is larger than 16 KiB").into());
        }
        if let Some(only) = claim.choice
            && choice_of(&said.payload)?.0 != only
        {
            return Err(violation("this link makes another choice").into());
        }
        let who = Principal {
            key_id: format!("link:{}", claim.name),
            tenant: claim.tenant.clone(),
            roles: vec![Role::Approver],
        };
        let replied = reply(
            &self.ledger,
            &Reply {
                principal: &who,
                run_or_workflow: claim.run.as_str(),
                key: &claim.gate,
                topic: Some(&claim.topic),
                payload: &said.payload,
                dedupe_key: &format!("link:{}", claim.id),
                origin: Origin::External,
                approved_by: &who.key_id,
            },
        )
        .await;
        match replied {
            // The link's own dedupe key was there: somebody was faster with the same link.
            Ok(replied) if replied.is_replay => Err(spent("it was used")),
            Ok(_) => Ok(ReplyResponse { ok: true, is_replay: false }),
            Err(Error::Refused(refusal)) if refusal.code == ErrorCode::DedupeConflict => {
                Err(spent("it was used"))
            }
            // The trigger had the last word: used, expired or void since the checks above.
            Err(Error::Ledger(LedgerError::Refused(..))) => {
                Err(spent("it was used, expired, or its gate changed"))
            }
            Err(other) => Err(other),
        }
    }

    async fn opened(&self, token: &str) -> Result<(LinkClaim, LinkGate)> {
        let Some(claim) = sign::here(self.signer.as_deref())?.link_claim(token) else {
            if self.guesses.another(clock::now_ms()) {
                let why = "this link was not made by this installation, or part of it is missing; open the whole link";
                return Err(Refusal::new(ErrorCode::LinkInvalid, why).into());
            }
            let why = "too many invalid reply links; retry in a minute";
            return Err(Refusal::new(ErrorCode::TooManyGuesses, why).into());
        };
        let Some(stand) = self.ledger.links().link_state(&claim).await? else {
            let why = "this database never made this link";
            return Err(Refusal::new(ErrorCode::LinkInvalid, why).into());
        };
        if stand.is_used {
            return Err(spent("it was used"));
        }
        if stand.is_expired || claim.expires_at <= clock::now_ms() {
            return Err(spent("its time is over"));
        }
        if stand.is_revoked {
            return Err(spent("the key that made it was revoked"));
        }
        let gate = self.ledger.links().gate(&claim.tenant, claim.run.as_str(), &claim.gate).await?;
        if gate.digest != claim.digest || gate.topic != claim.topic {
            return Err(spent("what it would approve has changed"));
        }
        if !gate.is_waiting {
            return Err(spent("the gate does not wait for it any more"));
        }
        Ok((claim, gate))
    }
}
