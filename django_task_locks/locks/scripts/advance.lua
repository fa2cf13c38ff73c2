-- advance: release and claim in one round trip. A slot that does not hold the request to release is
-- answered with what it holds: then this is a repeated call.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   slot: number.generation
-- ARGV[3]   ttl of the owner in seconds
-- ARGV[4]   version of the lanes that the caller chose from
-- ARGV[5]   id to release
-- ARGV[6]   its token
-- ARGV[7..] the lanes to take from
--
-- returns what claim returns

--@include _base
--@include _grant
--@include _claim

local owner, slot, ttl, lanes_version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local id, token = ARGV[5], ARGV[6]
local lanes = { unpack(ARGV, 7) }
local refused = refusal(owner, slot) or foreign_for_claim(owner)
if refused then return refused end
local request, bad = read(id)
if bad then return { 'foreign', bad } end
if request and is_mine(request, owner, token) then finish(request) end
return claim(owner, slot, ttl, lanes_version, lanes)
