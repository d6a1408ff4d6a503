-- Of another change; its text comes with the merge.
SELECT 1;
