#pragma once

#include "engine/timeline.h"
#include "program/priced_program.h"

namespace shardsim {

/// Plays `program` to its end: every task starts when all it waits for has ended; flowing tasks share
/// resources max-min fairly by progress rate (rates rise together until a resource is full or a task runs at
/// full speed).
///
/// Pure and deterministic: integer picoseconds, ties at one instant by task index.
/// Errors: none. Requires an acyclic program (InternalError names a task on a cycle) and every weight at most
/// the capacity left by held demands.
[[nodiscard]] Timeline simulate(const PricedProgram& program);

}  // namespace shardsim
