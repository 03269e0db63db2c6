// config: every key of every input file: type, default, legal values and meaning, each on one line.
// In: a TOML file and section.key=value overrides.  Out: a checked Config, and the resolved TOML that a run saves.
// The line that declares a key parses it, checks it, prints it and documents it (`lockstep keys`).
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace lockstep {

/// What a key may hold.  `words`: the legal strings; low and high: the legal numbers (of each element in a list), both included; every number has both,
/// so that no sum or product of keys overflows.
struct Rule {
  std::vector<std::string> words = {};
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};
template <class... Words>
Rule one_of(Words... words) { return {.words = {words...}}; }
inline Rule between(double low, double high) { return {.low = low, .high = high}; }
inline Rule any() { return {}; }
/// Above all that anybody means, and so low that products of them fit an int64.
inline constexpr std::int64_t largest_batch = 1 << 22, most_ranks = 1 << 20, most_epochs = 1'000'000, most_steps = 1'000'000'000'000;

/// [data]  What is read, and in which order.  Read by data/.
struct DataConfig {
  std::string path;
  std::string train_split = "train", eval_split = "val";
  std::int64_t global_batch = 0, rank_batch = 0, micro_batches = 1, eval_batch = 0;
  std::string shuffle = "full", last_batch = "keep";
  std::int64_t shuffle_window = 65536;
  std::int64_t readers = 2, slots = 3;
  std::string cache = "auto", stage;
  double stage_gib = 0;
  std::vector<double> mean, std;
  template <class Key> void keys(Key& key) {
    key("path", path, any(), "folder of HDF5 shards, made by lockstep-convert");
    key("train_split", train_split, any(), "split that is trained on");
    key("eval_split", eval_split, any(), "split that is evaluated");
    key("global_batch", global_batch, between(0, largest_batch), "images a step over all ranks; exactly one of this and rank_batch");
    key("rank_batch", rank_batch, between(0, largest_batch), "images a step on each rank; global_batch = rank_batch x ranks");
    key("micro_batches", micro_batches, between(1, 4096), "parts that each rank's share of a step is cut into; gradients are summed");
    key("eval_batch", eval_batch, between(0, largest_batch), "images a rank evaluates at once; 0: as many as a training step holds");
    key("shuffle", shuffle, one_of("full", "window", "none"), "full: one permutation an epoch; window: blocks of images, then within shuffle_window; none: stored order");
    key("shuffle_window", shuffle_window, between(1, most_steps), "images in the window of shuffle = \"window\"");
    key("last_batch", last_batch, one_of("keep", "drop", "pad"), "an epoch's remainder: one smaller step, left out, or filled up from the start of the epoch's order");
    key("readers", readers, between(1, 256), "threads a rank that read images");
    key("slots", slots, between(2, 64), "batches a rank reads ahead");
    key("cache", cache, one_of("auto", "none", "host", "device"),
        "where train keeps the stored images, with equal results: host: in each rank's memory; device: in the GPU's, so that only cuts are copied (on a CPU: as host); "
        "auto: on a GPU, where a split of images of one size fills at most an eighth of what is free; else none: read batch by batch");
    key("stage", stage, any(), "folder of each node's local disk that train (and bench.io) copies the shards to before it begins: once a node, compared with their checksums, shared by its ranks "
                               "and taken again by later jobs; empty: they are read from data.path");
    key("stage_gib", stage_gib, between(0, 1e6), "that the data sets below data.stage may take in all, GiB: for a new one, those unused for the longest time, and now, are removed; "
                                                 "0: no limit but the disk's");
    key("mean", mean, between(0, 1), "of each channel, as a fraction of 255; empty: the shards'");
    key("std", std, between(1e-6, 10), "of each channel, as a fraction of 255; empty: the shards'");
  }
};

/// [augment]  From a stored image to what the network sees.  Read by data/augment.
struct AugmentConfig {
  std::string train = "none", eval = "none";
  std::int64_t size = 0, eval_short = 0, pad = 4;
  std::string pad_fill = "black";
  bool flip = false;
  double scale_min = 0.08, scale_max = 1, aspect_max = 4.0 / 3.0;
  template <class Key> void keys(Key& key) {
    key("train", train, one_of("none", "pad_crop", "random_resized_crop", "center_crop", "resize"), "what is cut from a training image");
    key("eval", eval, one_of("none", "center_crop", "resize"), "what is cut from an evaluated image");
    key("size", size, between(0, 4096), "height and width that the network sees, pixels; 0: as stored");
    key("eval_short", eval_short, between(0, 4096), "short side before eval's center_crop, pixels; 0: as stored");
    key("pad", pad, between(0, 256), "pixels added on each side before pad_crop");
    key("pad_fill", pad_fill, one_of("black", "mean"), "colour of that border: 0 before (black) or after (mean) normalization");
    key("flip", flip, any(), "mirror training images left to right with probability 1/2");
    key("scale_min", scale_min, between(1e-4, 1), "least area of random_resized_crop, fraction of the image");
    key("scale_max", scale_max, between(1e-4, 1), "largest area of random_resized_crop, fraction of the image");
    key("aspect_max", aspect_max, between(1, 10), "aspect of random_resized_crop is between 1/this and this");
  }
};

/// [model]  Read by models/ and train/.
struct ModelConfig {
  std::string name = "resnet20", weights;
  std::vector<std::string> weights_except;
  std::int64_t classes = 0;
  std::string stem = "imagenet";
  bool zero_init_residual = false;
  double dropout = 0.5;
  bool sync_bn = false;
  std::int64_t sync_bn_group = 0;
  template <class Key> void keys(Key& key) {
    key("name", name, one_of("resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "alexnet", "lenet"), "network");
    key("weights", weights, any(), "file that a new run starts from: safetensors, PyTorch's .pth, or a checkpoint of lockstep; tensors are taken where name and shape agree; empty: drawn");
    key("weights_except", weights_except, any(), "names that are not taken from model.weights (\"fc.*\": the last layer starts anew)");
    key("classes", classes, between(0, 1 << 24), "outputs; 0: as many as the shards have classes; more is allowed");
    key("stem", stem, one_of("imagenet", "cifar"), "first layers of resnet18 to 152: 7x7 stride 2 and pooling, or 3x3 stride 1");
    key("zero_init_residual", zero_init_residual, any(), "start the last scale of each residual block at 0 (any ResNet)");
    key("dropout", dropout, between(0, 0.99), "probability of AlexNet's dropout layers");
    key("sync_bn", sync_bn, any(), "batch norm statistics over the ranks of a group");
    key("sync_bn_group", sync_bn_group, between(0, most_ranks), "consecutive ranks that share statistics; 0: all; must divide the ranks");
  }
};

/// [freeze]  Read by train/.
struct FreezeConfig {
  std::vector<std::string> parameters, except;
  std::string batch_norm = "running";
  template <class Key> void keys(Key& key) {
    key("parameters", parameters, any(), "names that are not trained; * stands for any text (\"layer1.*\")");
    key("except", except, any(), "names that are trained although parameters matches them");
    key("batch_norm", batch_norm, one_of("running", "batch"), "frozen batch norm: use running statistics unchanged, or normalize by the batch and track");
  }
};

/// [loss]  Read by layers/loss and train/.
struct LossConfig {
  double label_smoothing = 0;
  template <class Key> void keys(Key& key) {
    key("label_smoothing", label_smoothing, between(0, 0.99), "share of the target spread over all classes");
  }
};

/// [optimizer]  Read by optim/optimizer and train/network.
struct OptimizerConfig {
  std::string kind = "sgd";
  double learning_rate = 0.1;
  std::int64_t reference_batch = 0;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  bool decay_norm_and_bias = true;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, clip_norm = 0, loss_scale = 0;
  std::vector<std::string> rate_parameters = {};
  std::vector<double> rate_factors = {};
  template <class Key> void keys(Key& key) {
    key("kind", kind, one_of("sgd", "adamw"), "update rule");
    key("learning_rate", learning_rate, between(0, 1e4), "at reference_batch images a step");
    key("reference_batch", reference_batch, between(0, largest_batch), "learning_rate is multiplied by global batch / this; 0: it is not scaled");
    key("momentum", momentum, between(0, 0.9999), "of SGD");
    key("nesterov", nesterov, any(), "SGD looks ahead along its momentum");
    key("weight_decay", weight_decay, between(0, 10), "SGD: added to the gradient; AdamW: decoupled");
    key("decay_norm_and_bias", decay_norm_and_bias, any(), "decay batch norm parameters and biases too");
    key("beta1", beta1, between(0, 0.99999), "of AdamW");
    key("beta2", beta2, between(0, 0.9999999), "of AdamW");
    key("epsilon", epsilon, between(1e-30, 1), "of AdamW");
    key("clip_norm", clip_norm, between(0, 1e9), "largest norm of all gradients together; 0: not clipped");
    key("loss_scale", loss_scale, between(0, 0x1p60), "of fp16: the loss is multiplied by it, gradients are divided by it, and a step with one that is not finite is skipped; 0: dynamic, from 65536, "
                                                      "halved by a skipped step and doubled after 2000 good ones");
    key("rate_parameters", rate_parameters, any(), "names whose learning rate is multiplied by the rate_factors at the same place; * stands for any text; the first that matches counts");
    key("rate_factors", rate_factors, between(1e-6, 1e6), "factors of rate_parameters ([10] with [\"fc.*\"]: the last layer learns ten times as fast); all other rates are unchanged");
  }
};

/// [schedule]  Read by optim/schedule.
struct ScheduleConfig {
  std::string kind = "cosine", by = "step";
  double warmup_epochs = 0;
  double step_epochs = 30, gamma = 0.1;
  std::vector<double> milestones_epochs;
  std::vector<std::int64_t> milestones_steps;
  double final_fraction = 0, power = 1;
  std::int64_t patience = 3;
  double threshold = 1e-4;
  template <class Key> void keys(Key& key) {
    key("kind", kind, one_of("constant", "step", "multistep", "cosine", "polynomial", "plateau"), "shape of the rate after warm-up");
    key("by", by, one_of("step", "epoch"), "cosine and polynomial change each step, or at each epoch's start");
    key("warmup_epochs", warmup_epochs, between(0, 1000), "linear ramp, by step, never 0; 0 turns it off");
    key("step_epochs", step_epochs, between(1e-6, 1e6), "step: the rate is multiplied by gamma every so many epochs");
    key("gamma", gamma, between(1e-6, 1), "factor of step, multistep and plateau");
    key("milestones_epochs", milestones_epochs, between(0, most_epochs), "multistep: epochs at whose start the rate is multiplied by gamma");
    key("milestones_steps", milestones_steps, between(0, most_steps), "multistep: the same, counted in steps");
    key("final_fraction", final_fraction, between(0, 1), "cosine and polynomial: the rate at the end of run.epochs, as a fraction of the start");
    key("power", power, between(0.01, 10), "exponent of polynomial");
    key("patience", patience, between(0, most_epochs), "plateau: epochs without a lower training loss before the rate falls");
    key("threshold", threshold, between(0, 1), "plateau: relative gain that counts as lower");
  }
};

/// [checkpoint]  Read by train/checkpoint.
struct CheckpointConfig {
  double every_epochs = 1, every_minutes = 0;
  std::int64_t every_steps = 0, keep_last = 2, keep_every_epochs = 0;
  bool keep_best = true;
  template <class Key> void keys(Key& key) {
    key("every_epochs", every_epochs, between(0, most_epochs), "0: not by epoch");
    key("every_steps", every_steps, between(0, most_steps), "0: not by step");
    key("every_minutes", every_minutes, between(0, 1e6), "0: not by time");
    key("keep_last", keep_last, between(0, 1e9), "newest checkpoints kept; 0: all");
    key("keep_every_epochs", keep_every_epochs, between(0, most_epochs), "also kept for good: each checkpoint whose epoch is a multiple; 0: none");
    key("keep_best", keep_best, any(), "also kept: the one with the highest evaluated top-1");
  }
};

/// [run]  Read by train/.
struct RunConfig {
  std::string name, outputs = "outputs", resume = "auto";
  std::int64_t seed = 1, epochs = 90, max_steps = 0, ranks = 0, log_every = 20, evaluate_every_epochs = 1, max_skipped = 50, profile_from = 0;
  double stall_seconds = 120, start_seconds = 1800;
  template <class Key> void keys(Key& key) {
    key("name", name, any(), "folder of the run below run.outputs; default: the input file's name");
    key("outputs", outputs, any(), "where run folders are");
    key("resume", resume, any(), "auto: from the newest valid checkpoint of the run's folder, if any; never; or the path of a checkpoint");
    key("seed", seed, between(0, 9007199254740992.0), "of weights, order, crops and dropout");
    key("epochs", epochs, between(1, most_epochs), "passes over the training split; schedules end here");
    key("max_steps", max_steps, between(0, most_steps), "end after so many steps in all, whatever the epoch; schedules are unchanged; 0: no limit");
    key("ranks", ranks, between(0, most_ranks), "for check: the number of ranks to plan for; 0: those that run");
    key("log_every", log_every, between(1, most_steps), "steps between two records");
    key("evaluate_every_epochs", evaluate_every_epochs, between(0, most_epochs), "0: only at the end");
    key("max_skipped", max_skipped, between(1, most_steps), "skipped steps in a row (fp16) after which the run ends as diverged");
    key("profile_from", profile_from, between(0, 1e9), "for a profiler on a GPU: train hands it this step and the next nine, enqueued layer by layer under their names, and ends; 0: off");
    key("stall_seconds", stall_seconds, between(0, 1e6), "a rank without progress for so long ends the job; 0: never");
    key("start_seconds", start_seconds, between(0, 1e6), "the same, for the first step");
  }
};

/// [eval]  Read by train/commands/eval.
struct EvalConfig {
  std::string checkpoint;
  template <class Key> void keys(Key& key) {
    key("checkpoint", checkpoint, any(), "path; empty: the run's best, else its newest");
  }
};

/// [bench]  Read by train/commands/bench.
struct BenchConfig {
  bool io = false, profile = false;
  std::int64_t steps = 20, warmup = 3, image_size = 32, classes = 10;
  template <class Key> void keys(Key& key) {
    key("io", io, any(), "read shards only, without a network");
    key("profile", profile, any(), "also print where the time of a step goes, by kind of layer and by layer; without a recording");
    key("steps", steps, between(1, 1e9), "steps that are timed");
    key("warmup", warmup, between(0, 1e9), "steps before the clock starts");
    key("image_size", image_size, between(1, 4096), "height and width of the synthetic images when augment.size is 0");
    key("classes", classes, between(1, 1 << 24), "of the synthetic images");
  }
};

/// [comm]  Read by comm/ and graph/tasks.
struct CommConfig {
  double bucket_mib = 25;
  template <class Key> void keys(Key& key) {
    key("bucket_mib", bucket_mib, between(0.001, 4096), "gradients are summed over the ranks in pieces of about this size");
  }
};

/// [backends]  Read by backends/conv.
struct BackendConfig {
  std::string conv = "auto";
  std::int64_t workspace_mib = 1024;
  bool deterministic = false;
  template <class Key> void keys(Key& key) {
    key("conv", conv, any(), "library of convolutions: auto, or one that this build has (lockstep --version lists them)");
    key("workspace_mib", workspace_mib, between(0, 65536), "scratch memory that a GPU's convolution may ask for; ways that need more are not considered");
    key("deterministic", deterministic, any(), "on a GPU: equal runs give equal bits, also across kill and resume; costs 4 % of ResNet-50's rate, 2 to 3 % of ResNet-18's, nothing of "
                                               "CIFAR's ResNet-20 (fp16, H200); false: convolutions may be ways that add up in any order (on a CPU bits are equal always)");
  }
};

/// [graph]  Read by train/network.
struct GraphConfig {
  bool fuse = true, overlap = true;
  std::string recompute = "auto";
  template <class Key> void keys(Key& key) {
    key("fuse", fuse, any(), "run batch norm, addition, relu and pooling as one layer");
    key("overlap", overlap, any(), "on a GPU: compute gradients of weights beside those of activations, for a little more memory");
    key("recompute", recompute, one_of("auto", "always", "never"), "normalized activations are computed again in the backward pass instead of kept, with equal bits: less "
                                                                     "memory, a little slower; auto: where the network does not fit otherwise");
  }
};

/// [device]  Read by train/.
struct DeviceConfig {
  bool record = true;
  double memory_gib = 0;
  template <class Key> void keys(Key& key) {
    key("record", record, any(), "a GPU replays each kind of step as one CUDA graph where the communication allows it; false: enqueues kernel by kernel");
    key("memory_gib", memory_gib, between(0, 1e6), "memory that a rank may plan for, GiB; more than that is refused before it is taken, with the largest batch that fits; "
                                                   "0: on a GPU what is free, on a CPU a rank's share of the host's");
  }
};

struct Config {
  std::string precision = "fp32";
  DataConfig data;
  AugmentConfig augment;
  ModelConfig model;
  FreezeConfig freeze;
  LossConfig loss;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  CheckpointConfig checkpoint;
  RunConfig run;
  EvalConfig eval;
  BenchConfig bench;
  CommConfig comm;
  BackendConfig backends;
  GraphConfig graph;
  DeviceConfig device;

  template <class Key> void keys(Key& key) {
    key("precision", precision, one_of("fp32", "tf32", "bf16", "fp16"), "type of activations; weights' master copy, statistics and loss stay fp32");
  }
  /// Calls visit(section name, section) for each; the one list of sections.
  template <class Visit> void sections(Visit&& visit) {
    visit("data", data), visit("augment", augment), visit("model", model), visit("freeze", freeze), visit("loss", loss);
    visit("optimizer", optimizer), visit("schedule", schedule), visit("checkpoint", checkpoint), visit("run", run), visit("eval", eval);
    visit("bench", bench), visit("comm", comm), visit("backends", backends), visit("graph", graph), visit("device", device);
  }
};

/// Reads a TOML file and applies overrides ("section.key=value"; a bare word is taken as a string).  An empty path: defaults and overrides.
/// Unknown key, wrong type, out of range, no such file: Error in one line with file and key, the nearest name, what to do.
/// run.name defaults to the file's stem.  Mean and std must be both empty or both of one or three numbers.
Config read_config(const std::string& path, std::span<const std::string> overrides);
/// Parses resolved text (a run's config.toml, a checkpoint's copy); `origin` is named in errors.
Config parse_config(const std::string& text, const std::string& origin);
/// Every key in order, with its value; reads back to an equal Config.
std::string to_toml(const Config& config);
/// The lines of `lockstep keys`: name, default, legal values, meaning.
std::string describe_keys();

struct Difference {
  std::string key, before, after;
};
/// Keys whose values differ, in order.
std::vector<Difference> differences(const Config& before, const Config& after);
/// False for keys that may change between a run and its resume: those that leave its result alone, or change its rounding only, as another
/// number of ranks does (comm.*, backends.*, graph.*, device.*).  run.epochs is among them, but the trainer only lets it grow;
/// data.rank_batch too, since data.global_batch is what counts.  True for a name that is no key.
bool changes_result(const std::string& key);

}  // namespace lockstep
