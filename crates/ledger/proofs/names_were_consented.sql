-- Claim: no sandbox reached a name without a person at the gate, the host's own admin or the organisation's list; a build phase needs it for all but mirrors
-- A row means: names of a phase have no consent, or another one than is on record
SELECT e.run_id, e.phase, e.source, e.approver, e.policy_version
  FROM app.egress_policy_snapshots e
 WHERE e.source <> 'unrecorded'
   AND app.policy_needs_consent(e.phase, e.policy)
   AND (e.source = 'recipe'
     OR e.approver IS NULL
     OR (e.source = 'gate' AND NOT EXISTS (
         SELECT 1 FROM app.plan_approvals p
          WHERE p.run_id = e.run_id AND p.approved_by = e.approver AND p.origin <> 'engine-dbos'))
     OR (e.source = 'host-admin' AND NOT app.is_host_admin(e.approver))
     -- Each name of each list, but for mirrors of the build phase, stands in the organisation's list of that version.
     OR (e.source = 'org-policy' AND EXISTS (
         SELECT 1
           FROM jsonb_array_elements(e.policy) l,
                jsonb_array_elements_text(CASE jsonb_typeof(l) WHEN 'array' THEN l ELSE '[]' END) n
          WHERE NOT (e.phase = 'build' AND n LIKE '@%')
            AND NOT EXISTS (
                SELECT 1 FROM app.dynamic_config c
                 WHERE c.key = e.policy_key
                   AND c.key = 'egress.' || e.phase || '.allowed'
                   AND c.version = e.policy_version
                   AND c.value ? n
                   AND c.tenant_id IN ('*', (SELECT r.tenant_id FROM app.runs r WHERE r.id = e.run_id))))));
