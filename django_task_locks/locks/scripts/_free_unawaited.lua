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

  local freed, waits, value = {}, {}, UNAWAITED .. id
  for index, resource in ipairs(exclusive) do freed[index] = LOCK .. resource end
  for index, resource in ipairs(shared) do waits[index] = WAIT .. resource end
  if freed[1] then
    for _, its in ipairs(redis.call('MGET', unpack(freed))) do
      if its ~= value then return nil end
    end
  end
  if waits[1] and redis.call('EXISTS', unpack(waits)) > 0 then return nil end
  freed[#freed + 1] = key
  freed[#freed + 1] = GRANT .. id
  redis.call('DEL', unpack(freed))
  for _, resource in ipairs(shared) do redis.pcall('SREM', LOCK .. resource, id) end
  redis.pcall('SREM', OWNER .. owner, id)
  return { 'released', 0 }
end
