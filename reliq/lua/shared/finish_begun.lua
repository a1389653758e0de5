-- Finishes the messages, or all, that were acked as their tasks began. Returns the other leases.
-- use: leave, tags_of
local function finish_begun(leases, all)
  local begun, others = {}, {}
  for _, lease in ipairs(leases) do
    local list = (all or lease.score == 'begun') and begun or others
    list[#list + 1] = lease
  end
  if #begun > 0 then
    leave(tags_of(begun), 'acked')
  end
  return others
end
