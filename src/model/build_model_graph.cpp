#include "base/check.h"
#include "model/graph_writer.h"

namespace shardsim {

ModelGraph build_model_graph(const ModelConfig& config, const GraphOptions& options) {
  switch (config.family) {
    case ModelFamily::kDecoder:
      return build_decoder(config, options);
    case ModelFamily::kBert:
    case ModelFamily::kVit:
      return build_encoder(config, options);
    case ModelFamily::kT5:
    case ModelFamily::kWhisper:
      return build_encoder_decoder(config, options);
    case ModelFamily::kMamba:
      return build_mamba(config, options);
  }
  unreachable("build_model_graph");
}

}  // namespace shardsim
