// lockstep-convert: images -> shards.  Reads the command line, starts the source, turns errors into exit codes.
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "base/build_info.hpp"
#include "base/error.hpp"
#include "base/standard_streams.hpp"
#include "convert/convert.hpp"

namespace lockstep {

using MakeSource = std::unique_ptr<Source>();
MakeSource make_cifar10, make_cifar100, make_image_folder, make_shapes;   // a source: its file, and its name here and in the next line
constexpr MakeSource* sources[] = {make_image_folder, make_cifar10, make_cifar100, make_shapes};

namespace {

void add_source_option(CLI::App& command, const SourceOption& option) {
  const std::string flag = "--" + option.name;
  std::visit([&](auto* value) {
    CLI::Option* added = nullptr;
    if constexpr (std::is_same_v<decltype(value), bool*>) added = command.add_flag(flag, *value, option.meaning);
    else if constexpr (std::is_same_v<decltype(value), std::string*>) {
      added = command.add_option(flag, *value, option.meaning);
      if (!value->empty()) added->capture_default_str();
    } else if constexpr (std::is_same_v<decltype(value), double*>) {   // CLI11 would read a decimal comma where a library's locale has one
      added = command.add_option_function<std::string>(flag, [value, flag](const std::string& text) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
        if (error != std::errc() || end != text.data() + text.size()) throw CLI::ConversionError(text, flag);
      }, option.meaning)->type_name("FLOAT");
      if (*value >= 0) added->default_str(text_of(*value));
    } else {
      added = command.add_option(flag, *value, option.meaning);
      if (*value >= 0) added->capture_default_str();                // a negative default means "not given"
    }
    if (!option.words.empty()) added->check(CLI::IsMember(option.words));
  }, option.value);
}

void add_common_options(CLI::App& command, ConvertOptions& options) {
  command.add_option("--shards", options.shards, "files a split (default: about 1 GiB each)");
  command.add_option("--seed", options.seed, "of the order of training images, of --val-fraction, and of generated images")->capture_default_str()->check(CLI::NonNegativeNumber);
  command.add_option("--threads", options.threads, "threads (default: one a core); the result does not depend on it")->check(CLI::Range(1, 4096));
  command.add_flag("--strict", options.strict, "a broken image ends the conversion, exit 2 (default: it is left out and named)");
  command.add_flag("--force", options.force, "start even if the disk seems too small");
  command.add_flag("--overwrite", options.overwrite, "replace what another conversion left in OUTPUT");
}

int run(int argc, char** argv) {
  CLI::App app("Makes shards for lockstep out of images.  OUTPUT/convert-report.txt says what was left out and why.", "lockstep-convert");
  app.set_help_flag();
  app.set_help_all_flag("-h,--help", "all sources and their options");
  app.set_version_flag("--version", text_of("lockstep-convert ", build_info().version, ", ", build_info().git_hash));
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done (or already done), 1 internal error, 2 bad input.");
  ConvertOptions options;
  std::string input;
  std::vector<std::pair<CLI::App*, std::unique_ptr<Source>>> commands;
  for (MakeSource* make : sources) {
    std::unique_ptr<Source> source = make();
    CLI::App& command = *app.add_subcommand(source->name(), source->summary());
    command.set_help_all_flag();
    command.set_help_flag("-h,--help", "this text");
    if (source->has_input()) command.add_option("INPUT", input, "what to convert")->required();
    command.add_option("OUTPUT", options.output, "folder of the shards; is made")->required();
    for (const SourceOption& option : source->options()) add_source_option(command, option);
    add_common_options(command, options);
    commands.emplace_back(&command, std::move(source));
  }
  if (argc > 1 && argv[1][0] != '-' && std::ranges::none_of(commands, [&](const auto& c) { return c.first->get_name() == argv[1]; }))
    fail("\"", argv[1], "\" is no source of images. lockstep-convert --help lists them");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {                             // --help
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    std::string words = error.what();
    std::ranges::replace(words, '\n', ' ');
    fail(words, ". lockstep-convert --help shows all options");
  }
  for (auto& [command, source] : commands)
    require(!command->parsed() || (!options.output.empty() && (!source->has_input() || !input.empty())),
            source->name(), ": INPUT or OUTPUT is empty, as where a script's variable is not set. lockstep-convert --help shows all options");
  for (auto& [command, source] : commands)
    if (command->parsed()) convert(*source, input, options);
  return exit_done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::open_standard_streams();
  ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);   // TRUE would overrule storage/, where a file system may have no locks
  const auto say = [](const std::string& words, int code) {
    std::cerr << lockstep::text_of("lockstep-convert: error: ", words, "\n") << std::flush;
    return code;
  };
  try {
    return lockstep::run(argc, argv);
  } catch (const lockstep::Error& error) {
    return say(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return say("this host has no memory left. Give fewer --threads or a smaller --size", lockstep::exit_bad_input);
  } catch (const std::filesystem::filesystem_error& error) {   // a path of the user's, where nobody looked before it was used
    return say(lockstep::text_of(error.path1().string(), ": ", error.code().message(), ". Check this path and its permissions"), lockstep::exit_bad_input);
  } catch (const std::exception& error) {
    return say(error.what(), lockstep::exit_internal);
  }
}
