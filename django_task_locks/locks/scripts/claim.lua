-- claim: gives the next ready request to an owner's executor slot, with a new token. A slot that
-- holds a request already is answered with that one, so a repeated call claims nothing more.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   slot: number.generation
-- ARGV[3]   ttl of the owner in seconds
-- ARGV[4]   version of the lanes that the caller chose from; another one is answered with the lanes
-- ARGV[5..] the lanes to take from
--
-- returns {"claimed", id, token, is there more to settle}
--         | {"empty", ms until the next request is due or "", is there more to settle}
--         | {"lanes", version, lane, description, ...}
--         | {"foreign", key} | {"closed", owner} | {"stale_slot", slot}

--@include _base
--@include _grant
--@include _claim

local owner, slot, ttl, lanes_version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lanes = { unpack(ARGV, 5) }
return refusal(owner, slot) or foreign_for_claim(owner)
  or claim(owner, slot, ttl, lanes_version, lanes)
