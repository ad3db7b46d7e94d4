// What Python sees. Addresses come in as integers: who calls keeps the memory alive until the work has ended.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine.h"

namespace nb = nanobind;
using namespace mlrun::ring;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

namespace {

// Long waits look for Ctrl-C this often.
constexpr double kSignalCheckS = 0.1;

struct Work {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Operation> operation;

  // False: still under way after `timeout_s`; negative: without end.
  bool wait(double timeout_s) {
    const int64_t deadline = now_ns() + static_cast<int64_t>(timeout_s * 1e9);
    while (true) {
      const double left = timeout_s < 0 ? kSignalCheckS : static_cast<double>(deadline - now_ns()) * 1e-9;
      bool ended;
      {
        nb::gil_scoped_release release;
        ended = engine->wait(*operation, std::max(0.0, std::min(left, kSignalCheckS)));
      }
      if (ended) return true;
      if (timeout_s >= 0 && now_ns() >= deadline) return false;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  bool done() { return engine->done(*operation); }
  auto times() { return engine->times(*operation); }
};

struct GroupHandle {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Group> group;

  Work issue(int kind, int dtype, int op, int wire, int root, int tag, uint64_t count, uintptr_t source,
             uintptr_t target, std::vector<uint64_t> source_counts, std::vector<uint64_t> target_counts,
             std::string name) {
    Request request;
    request.kind = static_cast<Kind>(kind);
    request.dtype = static_cast<DType>(dtype);
    request.op = static_cast<ReduceOp>(op);
    request.wire = wire < 0 ? kNoWire : static_cast<uint8_t>(wire);
    request.root = root;
    request.tag = tag;
    request.count = count;
    request.source = reinterpret_cast<const char*>(source);
    request.target = reinterpret_cast<char*>(target);
    request.source_counts = std::move(source_counts);
    request.target_counts = std::move(target_counts);
    request.name = std::move(name);
    return {engine, engine->issue(group, std::move(request))};
  }

  // The group of `ranks`, which every rank of this one has just agreed on; nothing on ranks outside it.
  std::optional<GroupHandle> make_group(const std::vector<int>& ranks, uint32_t id) {
    auto made = engine->make_group(*group, ranks, id);
    if (made->me < 0) return std::nullopt;
    return GroupHandle{engine, made};
  }
};

// The classes of communicator.py, in the order of Failure.
void translate(const std::exception_ptr& raised, void*) {
  try {
    std::rethrow_exception(raised);
  } catch (const RingError& error) {
    const char* const names[] = {"MismatchError", "PeerLostError", "DeadlineError", "AbortedError"};
    const nb::object kind =
        nb::module_::import_("mlrun.allreduce.communicator").attr(names[static_cast<int>(error.failure)]);
    PyErr_SetString(kind.ptr(), error.what());
  }
}

std::shared_ptr<Engine> make_engine(int rank, std::vector<std::string> hosts, std::vector<int> next,
                                    std::vector<int> previous, uint32_t generation, double heartbeat_s,
                                    double entry_timeout_s, double progress_timeout_s, bool checksum,
                                    double pace_bytes_s, double pace_delay_s) {
  return std::make_shared<Engine>(Config{rank, std::move(hosts), std::move(next), std::move(previous), generation,
                                         heartbeat_s, entry_timeout_s, progress_timeout_s, checksum, pace_bytes_s,
                                         pace_delay_s});
}

}  // namespace

NB_MODULE(_ring, m) {
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);

  nb::class_<LinkCounters>(m, "LinkCounters")
      .def_ro("peer", &LinkCounters::peer)
      .def_ro("bytes_sent", &LinkCounters::bytes_sent)
      .def_ro("bytes_received", &LinkCounters::bytes_received)
      .def_ro("send_blocked_s", &LinkCounters::send_blocked_s)
      .def_ro("receive_blocked_s", &LinkCounters::receive_blocked_s)
      .def_ro("retransmits", &LinkCounters::retransmits);

  nb::class_<Work>(m, "Work")
      .def("wait", &Work::wait, nb::arg("timeout_s"))
      .def("done", &Work::done)
      .def("times", &Work::times);

  nb::class_<GroupHandle>(m, "Group")
      .def("issue", &GroupHandle::issue, nb::arg("kind"), nb::arg("dtype") = 5, nb::arg("op") = 0, nb::arg("wire") = -1,
           nb::arg("root") = 0, nb::arg("tag") = 0, nb::arg("count") = 0, nb::arg("source") = 0, nb::arg("target") = 0,
           nb::arg("source_counts") = std::vector<uint64_t>{}, nb::arg("target_counts") = std::vector<uint64_t>{},
           nb::arg("name") = "", ReleaseGil())
      .def("next_group_id", [](GroupHandle& self) { return self.engine->next_group_id(*self.group); })
      .def("make_group", &GroupHandle::make_group, nb::arg("ranks"), nb::arg("id"));

  nb::class_<Engine>(m, "Engine")
      .def(nb::new_(&make_engine), nb::kw_only(), nb::arg("rank"), nb::arg("hosts"), nb::arg("next"),
           nb::arg("previous"), nb::arg("generation"), nb::arg("heartbeat_s"), nb::arg("entry_timeout_s"),
           nb::arg("progress_timeout_s"), nb::arg("checksum"), nb::arg("pace_bytes_s"), nb::arg("pace_delay_s"))
      .def("world", [](const std::shared_ptr<Engine>& self) { return GroupHandle{self, self->world()}; })
      .def("abort", &Engine::abort, nb::arg("reason"), ReleaseGil())
      .def("close", &Engine::close, ReleaseGil())
      .def("counters", &Engine::counters, ReleaseGil());
}
