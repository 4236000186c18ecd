{
  description = "Stand-in for the few parts of nixpkgs that imp's flake uses; mkseed.py makes it whole";

  outputs =
    { self }:
    let
      lib = import ./lib.nix // {
        nixosSystem = import ./nixos.nix lib;
      };
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: import ./. { inherit system; });
    };
}
