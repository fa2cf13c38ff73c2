-- The usual end of a hold, in few commands: its owner has it, and nobody waits for what it leaves.

-- The reply, or nil where it is not that simple: then nothing has changed.
local function free_unawaited()
  local key = REQUEST .. id
  local record = redis.pcall('GET', key)
  local is_json, request = pcall(cjson.decode, record)
  if not is_json or type(request) ~= 'table' or request.owner ~= owner or request.token ~= token
    or request.slot or request.lane then
    return nil
  end
  local exclusive, shared = request.exclusive or {}, request.shared or {}
  if #exclusive + #shared > 1700 then return nil end

  local awaited, locks = { UNSETTLED }, {}
  for index, resource in ipairs(exclusive) do
    awaited[index + 1] = WAIT .. resource
    locks[index] = LOCK .. resource
  end
  for _, resource in ipairs(shared) do awaited[#awaited + 1] = WAIT_X .. resource end
  if redis.call('EXISTS', unpack(awaited)) > 0 then return nil end

  local freed = { key, GRANT .. id }
  if locks[1] then
    -- a lock that an operator deleted and somebody else took is left alone
    for index, holder in ipairs(redis.call('MGET', unpack(locks))) do
      if holder == id then freed[#freed + 1] = locks[index] end
    end
  end
  redis.call('DEL', unpack(freed))
  for _, resource in ipairs(shared) do redis.pcall('SREM', LOCK .. resource, id) end
  redis.pcall('SREM', OWNER .. owner, id)
  return { 'released', 0 }
end
