-- inspect: one request with what is in its way; read-only.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   id
-- ARGV[2]   most obstacles to report
--
-- returns {"request", state, owner, queue, lane, slot, score, token, since in ms, label, exclusive and
--          shared as JSON, Unix time in ms at which it is due or "", resource, mode, id, state, owner, since, label, ...} | {"unknown"}
--          | {"foreign", key}; seven values for each obstacle

--@include _base

local request, bad = read(ARGV[1])
if bad then return { 'foreign', bad } end
if not request then return { 'unknown' } end
local most = tonumber(ARGV[2])
local values = {
  request.state, request.owner, request.queue or '', request.lane or '', request.slot or '',
  request.score, request.token or '', request.since, request.label or '',
  cjson.encode(request.exclusive), cjson.encode(request.shared), '',
}
if request.state == 'due' then
  local due = redis.pcall('ZSCORE', DUE, request.id)
  if type(due) == 'string' then values[#values] = due end
end
if request.state == 'waiting' then
  append_obstacles(values, survey(request, false, most), most)
end
return reply('request', values)
