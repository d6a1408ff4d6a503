-- `voted` counts towards a quorum without reaching it; `already_voted` is a second answer of one key.
ALTER TABLE app.human_interactions
  DROP CONSTRAINT human_interactions_outcome_check,
  ADD CONSTRAINT human_interactions_outcome_check
    CHECK (outcome IN ('accepted','voted','already_voted','late','already_decided'));
